import java.net.InetSocketAddress;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import software.amazon.dynamodb.services.local.server.LocalDynamoDBRequestHandler;
import software.amazon.dynamodb.services.local.server.LocalDynamoDBServerHandler;

/**
 * Serves DynamoDB Local, in memory, on a free port of 127.0.0.1, and prints "listening HOST:PORT".
 *
 * <p>It stands in for the product's own ServerRunner, which binds every interface, wants to be told
 * its port and outlives the test that started it. This one ends when its standard input does.
 */
public final class Emulator {
  public static void main(String[] args) throws Exception {
    Thread owner = new Thread(Emulator::awaitOwner, "owner");
    owner.setDaemon(true);
    owner.start();

    var requests = new LocalDynamoDBRequestHandler(0, true, null, true, false);
    var server = new Server(new InetSocketAddress("127.0.0.1", 0));
    server.setHandler(new LocalDynamoDBServerHandler(requests, "*"));
    server.start();
    int port = ((ServerConnector) server.getConnectors()[0]).getLocalPort();
    System.out.println("listening 127.0.0.1:" + port);
    server.join();
  }

  private static void awaitOwner() {
    try {
      while (System.in.read() >= 0) {
        // The owner writes nothing.
      }
    } catch (java.io.IOException gone) {
      // As good as the end.
    }
    Runtime.getRuntime().halt(0);
  }
}
